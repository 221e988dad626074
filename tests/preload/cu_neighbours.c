/*
 * Names that begin like the driver's and are not: they must pass the shim untouched.
 */
#define EXPORT __attribute__((visibility("default")))

EXPORT int cublasCreate_v2(void);
EXPORT int cudaMalloc(void);
EXPORT int cuMemAlloc_v2_other(void);
EXPORT int cuMemAlloc_v(void);
EXPORT int cuM(void);

int cublasCreate_v2(void)
{
    return 1;
}

int cudaMalloc(void)
{
    return 2;
}

int cuMemAlloc_v2_other(void)
{
    return 3;
}

int cuMemAlloc_v(void)
{
    return 4;
}

int cuM(void)
{
    return 5;
}
