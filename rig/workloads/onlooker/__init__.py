"""Watches an unmodified training script from inside its process: steps, buckets, bytes, without a changed line.

`sitecustomize` is what Python loads by itself, `watch` knows steps and tells the rig of them, `taps` is where torch
tells it what happens, `replicas` what DDP exchanges. A script that imports no torch is not made to.
"""
