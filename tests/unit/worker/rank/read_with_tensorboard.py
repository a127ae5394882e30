#!/usr/bin/python3
"""Reads a job's output folder as TensorBoard does, and prints what it draws: tag, step, value.

read_with_tensorboard.py FOLDER
"""
import sys

from tensorboard.backend.event_processing import event_accumulator

curves = event_accumulator.EventAccumulator(sys.argv[1], size_guidance={event_accumulator.SCALARS: 0, event_accumulator.TENSORS: 0})
curves.Reload()
assert curves.file_version == 2, curves.file_version
for tag in sorted(curves.Tags()["scalars"]):
    for point in curves.Scalars(tag):
        assert point.wall_time > 1.7e9, point
        print(tag, point.step, repr(point.value))
