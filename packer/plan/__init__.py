"""From what a source lists to the samples to be: keys, labels, splits, and their order."""
