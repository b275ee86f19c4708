"""What we show: scenarios, the scripted model provider, the laboratory, the benchmark, and the command."""

if (
    __name__ != "perdure.scenarios"
):  # a folder of a checkout: the same modules under two names would be two of everything
    raise ImportError("this folder is a part of the package `perdure`: import `perdure.scenarios`")
