"""An author's code: how classes and tools are named and found again, how annotations are checked, how code travels."""
