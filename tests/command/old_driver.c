/* A libcuda.so.1 of CUDA 10.2, which has less than the library takes: for gpushim doctor. */
__attribute__((visibility("default"))) int cuInit(unsigned flags);
__attribute__((visibility("default"))) int cuDriverGetVersion(int *version);

int cuInit(unsigned flags)
{
    return flags ? 1 : 0;
}

int cuDriverGetVersion(int *version)
{
    *version = 10020;
    return 0;
}
