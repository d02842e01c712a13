"""Generated attention problems through `tilewright run`, held against float64."""
