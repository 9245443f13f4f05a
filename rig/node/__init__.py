"""What runs inside a node. Standard library only: this folder is carried to a node as it is."""
