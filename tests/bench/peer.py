"""What PyTorch, beside which benchmarks run, is given to be at its best."""
import os
import pathlib


def environment():
    """OpenBLAS 0.3.21 takes slower code by itself where the CPU has AVX-512; elsewhere that code is no instruction."""
    has_avx512 = " avx512f " in pathlib.Path("/proc/cpuinfo").read_text()
    return dict(os.environ, **({"OPENBLAS_CORETYPE": "SkylakeX"} if has_avx512 else {}))
