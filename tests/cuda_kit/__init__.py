"""The tests of the GPU kernels on an NVIDIA GPU, through IREE's CUDA driver: made here, run there, judged in both.

    make cuda-kit DIR=FOLDER                   # the tests on the host build, and programs of what they launch
    python tests/cuda_kit run FOLDER           # in a checkout where the GPU is: needs iree-base-runtime and ml_dtypes
    make cuda-results DIR=FOLDER               # here, once FOLDER/results came back

`run` holds what comes out against the host build's results, which the tests have accepted, by the tolerances of
kernel_tolerances.py, and prints a line for each test; buffers that a launch must not change and the bytes behind each
output are held against it too. The last command gives the GPU's results to the tests themselves.
"""
