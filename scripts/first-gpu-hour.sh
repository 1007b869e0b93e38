#!/bin/sh
# Measure what only a GPU can say, in one table: benchmarks/first_hour/__main__.py and
# docs/benchmarks.md.
cd "$(dirname "$0")/.." && exec "${PYTHON:-.venv/bin/python}" -m benchmarks.first_hour "$@"
