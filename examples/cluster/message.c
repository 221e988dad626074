/*
 * Two ranks of MPI, on two machines of an NVLink domain: the first sends the second a handle of its
 * GPU memory, as it would within one machine. It knows nothing of the library; without that, the
 * second cannot open it.
 *
 *   mpicc -o message message.c -lcuda
 *   mpirun --host A,B -x LD_PRELOAD=... -x GPUSHIM_SHARE_STRATEGY=broker \
 *       -x GPUSHIM_SHARE_REACH=cluster ./message
 */
#include <cuda.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define SIZE (8u << 20)

static void check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    printf("%s: error %d\n", what, (int)result);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static CUdeviceptr allocate(unsigned char byte)
{
    CUdeviceptr pointer;

    check(cuMemAlloc(&pointer, SIZE), "cuMemAlloc");
    check(cuMemsetD8(pointer, byte, SIZE), "cuMemsetD8");
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    return pointer;
}

static void first(void)
{
    CUdeviceptr pointer = allocate(0x5a), other;
    CUipcMemHandle handle;

    check(cuIpcGetMemHandle(&handle, pointer), "cuIpcGetMemHandle");
    MPI_Send(&handle, sizeof handle, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD); /* it is open there */
    check(cuMemFree(pointer), "cuMemFree");
    other = allocate(0xff); /* which would be that memory again */
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD); /* it was read */
    check(cuMemFree(other), "cuMemFree");
}

static void second(void)
{
    unsigned char byte = 0;
    CUipcMemHandle handle;
    CUdeviceptr pointer;

    MPI_Recv(&handle, sizeof handle, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    check(cuIpcOpenMemHandle(&pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          "cuIpcOpenMemHandle");
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD); /* it was freed, and more was allocated */
    check(cuMemcpyDtoH(&byte, pointer + SIZE - 1, 1), "cuMemcpyDtoH");
    printf("the other machine's memory, which it has freed, has its bytes: %s\n",
           byte == 0x5a ? "yes" : "no");
    fflush(stdout);
    check(cuIpcCloseMemHandle(pointer), "cuIpcCloseMemHandle");
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    CUcontext context;
    CUdevice device;
    int rank, size;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&device, 0), "cuDeviceGet");
    check(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    if (size < 2 && rank == 0)
        printf("start two ranks, one on each of two machines\n");
    else if (rank == 0)
        first();
    else if (rank == 1)
        second();
    MPI_Finalize();
    return size < 2;
}
