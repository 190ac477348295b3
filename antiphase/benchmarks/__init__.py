"""Speed as ratios to baselines, measured in one process with the alternatives interleaved."""
