"""What we show: scenarios, the scripted model provider, the laboratory, the benchmark, and the command."""

if __name__ != "perdure.scenarios":  # imported from a checkout: every module would exist twice
    raise ImportError("this folder is a part of the package `perdure`: import `perdure.scenarios`")
