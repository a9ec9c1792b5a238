"""Named concepts of Python source: labels from the syntax tree, exact and without an annotator."""
