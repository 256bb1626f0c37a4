"""The embedded model: decoding on the CPU, its generated problems, and its warm start."""
