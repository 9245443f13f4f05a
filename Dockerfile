# What nodes and fabric need, and nothing of the rig: its code is mounted, read-only, when a lab is up.
# The rig builds this by itself on first use (rig/lab/image.py), with its own requirements.txt beside it.
ARG BASE_IMAGE=python:3.11-slim-bookworm
FROM ${BASE_IMAGE}

# `ip` and `ss`, for people who look around in a node; the rig itself does not call them.
RUN command -v ip >/dev/null \
 || (apt-get update && apt-get install -y --no-install-recommends iproute2 && rm -rf /var/lib/apt/lists/*)

# A virtual environment, because Debian's own Python refuses pip and a base image may have no `python`.
RUN python3 -m venv /opt/rig
ENV PATH=/opt/rig/bin:${PATH}

# wheelhouse/ is empty for most people, who install from the package index.
COPY requirements.txt /opt/rig/
COPY wheelhouse/ /opt/wheelhouse/
RUN if ls /opt/wheelhouse/*.whl >/dev/null 2>&1; then set -- --no-index --find-links /opt/wheelhouse; else set --; fi \
 && pip install --no-cache-dir --disable-pip-version-check "$@" -r /opt/rig/requirements.txt
