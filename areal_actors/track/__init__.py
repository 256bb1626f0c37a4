"""Sends live, finished and exported runs to TensorBoard, Weights & Biases, MLflow and Trackio.

Each tracker has a process of its own. `sender.py` and `to_*.py` run in the interpreter that has the tracker's library:
they import nothing but it and the standard library.
"""
