"""Benchmarks: contenders in alternation in one run, medians and ratios, the machine named."""
