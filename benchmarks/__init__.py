"""One file per question; each ends in a line of JSON. Run from the repository: `python -m benchmarks.bench_engine`."""
