"""SGLang on a CPU for topas' tests: an out-of-tree platform and two import stubs."""


def activate() -> str:
    """Name the platform class (the entry point that SGLang calls)."""
    return "topas_test_cpu_platform.platform.TestCpuPlatform"
