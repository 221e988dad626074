/*
 * The software driver's inside: memory, and what is allocated, copied and loaded there. Part of
 * internal.h, which includes it.
 */
#ifndef SD_STORAGE_H
#define SD_STORAGE_H

/* ---- segment.c: physical memory and what is mapped where ---- */

/* One piece of physical memory: a memfd. Counts against its device while anything holds it. */
struct sd_phys {
    unsigned refs;
    int fd;
    size_t size;
    int device;    /* -1: memory of a device that is hidden from us */
    bool imported; /* made by another process: counts there, unless it is */
    bool listed;   /* with sd_machine_list */
    uint64_t id;
    uint64_t inode;
    char *fabric; /* the file that is it, where machines share it; its last name leads there */
    struct sd_phys *next;
};

enum sd_access { SD_ACCESS_NONE = 0, SD_ACCESS_READ = 1, SD_ACCESS_WRITE = 3 };

/* Memory mapped at an address; the unit in which addresses appear and vanish. */
struct sd_segment {
    uint64_t base;
    size_t size;
    struct sd_phys *phys; /* NULL: host memory */
    int device;           /* -1: host memory, open to all */
    bool read_only;       /* host memory that devices may read alone */
    uint64_t life;        /* of the context whose memory it is; unless listed */
    bool listed; /* access is as set for each device, else it is the device's and the peers' */
    uint8_t access[SD_MAX_DEVICES];
};

/* A memfd sealed at its size, close-on-exec and among the driver's own; -1 where there is no
 * room. */
int sd_memfd_new(size_t size, const char *name);
/* A close-on-exec descriptor among the driver's own; -1 where the file cannot be opened. */
int sd_open_private(const char *path, int flags);
/* New physical memory; OUT_OF_MEMORY past the device's limit. */
CUresult sd_phys_new(int device, size_t size, struct sd_phys **ret);
/* New physical memory that other machines of the NVLink domain can import; NOT_PERMITTED: of
 * none. */
CUresult sd_phys_new_fabric(int device, size_t size, struct sd_phys **ret);
/* Its fabric handle; and the memory behind one. */
void sd_phys_fabric_handle(const struct sd_phys *phys, CUmemFabricHandle *ret);
CUresult sd_phys_import_fabric(const CUmemFabricHandle *handle, struct sd_phys **ret);
/* The memory behind a descriptor (not taken over); the same object when we have it already. */
CUresult sd_phys_import(int fd, struct sd_phys **ret);
/* Others get it by descriptor, or this process did. */
void sd_phys_list(struct sd_phys *phys);
struct sd_phys *sd_phys_ref(struct sd_phys *phys);
void sd_phys_unref(struct sd_phys *phys);

/* ---- space.c ---- */

/* Whether an address is of the part of the address space that is the devices' alone. */
bool sd_space_is_devices(uint64_t address);
/* Address space without memory, at `at` if that is free (0: anywhere). 0 when there is none. */
uint64_t sd_address_reserve(size_t size, size_t align, uint64_t at);
void sd_address_release(uint64_t base, size_t size);

/* ---- segment.c again ---- */

/* Maps it into reserved address space and makes it known, taking a reference of its own; `listed`
   ones can be accessed by nobody yet. A failure leaves the space reserved. */
CUresult sd_segment_map(uint64_t base, struct sd_phys *phys, bool listed, struct sd_segment **ret);
/* Host memory becomes known to the devices. */
struct sd_segment *sd_segment_add_host(uint64_t base, size_t size);
/* Unknown from now on, to running work too; leaves reserved address space without memory. */
void sd_segment_unmap(struct sd_segment *segment);
/* Access changes for one device; PROT of the mapping follows. */
CUresult sd_segment_set_access(struct sd_segment *segment, int device, enum sd_access access);
/* Memory, address and mapping in one step, all gone with sd_segment_delete. */
CUresult sd_segment_new(int device, size_t size, bool listed, struct sd_segment **ret);
/* As it, and when the device is full, unused pool memory is taken first. */
CUresult sd_segment_new_pressed(int device, size_t size, bool listed, struct sd_segment **ret);
void sd_segment_delete(struct sd_segment *segment);

enum sd_access sd_segment_access(const struct sd_segment *segment,
                                 const struct sd_context *context);

/*
 * For running work: how many bytes from `address` on the context may access so. 0: none, a fault.
 * Without a context any device's access will do: the call checked whose it is. Between begin and
 * end the memory stays mapped; keep it short.
 */
void sd_touch_begin(void);
size_t sd_touch(const struct sd_context *context, uint64_t address, enum sd_access access);
void sd_touch_end(void);

/* ---- span.c: cutting a segment into blocks ---- */

struct sd_span {
    struct sd_span *next; /* by address */
    uint64_t base;
    size_t size;
    bool used;
    struct sd_op *freed_by; /* free for all once it is done */
    uint64_t freed_in;      /* id of the queue that it is free for already */
};

struct sd_piece {
    struct sd_piece *next;
    struct sd_segment *segment;
    struct sd_span *spans;
};

struct sd_piece *sd_piece_new(struct sd_segment *segment);
void sd_piece_free(struct sd_piece *piece); /* not its segment */
/* The first place that is free for the queue (NULL: for everybody); 0 when there is none. With
 * `behind` also what other queues have freed, side by side: that operation is put behind it. */
uint64_t sd_piece_take(struct sd_piece *piece, size_t size, const struct sd_queue *queue,
                       struct sd_op *behind);
/* Free again: for `queue` at once, for others when `after` is done (NULL: now). */
void sd_piece_give(struct sd_piece *piece, uint64_t base, struct sd_op *after,
                   const struct sd_queue *queue);
/* Nothing in use, and no work that something freed waits for. */
bool sd_piece_empty(struct sd_piece *piece);

/* ---- block.c, memory.c: allocations ---- */

enum sd_block_kind {
    SD_BLOCK_ALLOC,  /* cuMemAlloc */
    SD_BLOCK_ASYNC,  /* from a pool */
    SD_BLOCK_GRAPH,  /* of a graph's allocation node */
    SD_BLOCK_VMM,    /* a mapping */
    SD_BLOCK_IPC,    /* opened legacy handle */
    SD_BLOCK_MODULE, /* a module's variable */
    SD_BLOCK_HOST,
    SD_BLOCK_MANAGED
};

struct sd_block {
    uint64_t base;
    size_t size; /* as asked for; VMM, IPC: of the mapping */
    enum sd_block_kind kind;
    struct sd_segment *segment;
    struct sd_context *context; /* the owner; NULL for VMM and pool memory */
    int device;
    struct sd_piece *piece; /* when it is part of one */
    struct sd_pool *pool;
    struct sd_allocation *allocation; /* VMM: the handle mapped */
    uint64_t id;
    int sync_memops; /* as set; -1: as this machine has it at first */
    bool freeing;    /* a free waits for the work: for all others it is gone */
    bool leaving; /* freed in a stream's order, which has not got there: no free takes it again */
    bool hidden;
    bool registered; /* host memory that is the program's own */
    unsigned host_flags;
};

extern struct sd_ranges sd_blocks;

struct sd_block *sd_block_new(enum sd_block_kind kind, uint64_t base, size_t size,
                              struct sd_segment *segment, struct sd_context *context, int device);
/* Nobody finds the block any more; it and its memory are there until it is released. */
void sd_block_hide(struct sd_block *block);
/* Hides and forgets the block; the memory is the caller's business. */
void sd_block_delete(struct sd_block *block);
/* The block with this address inside, NULL when there is none or it is being freed. */
struct sd_block *sd_block_find(uint64_t address);
bool sd_block_is_device(const struct sd_block *block);
/* Every byte of the range is allocated and the context may access it so. */
bool sd_block_range_ok(const struct sd_context *context, uint64_t base, size_t size,
                       enum sd_access access, bool other_devices);
/* The block and its memory go: at once, or as sd_piece_give has it for pool memory. */
void sd_block_release(struct sd_block *block, struct sd_op *after, const struct sd_queue *queue);
void sd_context_drop_blocks(struct sd_context *context);

/* ---- pool.c ---- */

struct sd_pool {
    struct sd_object object;
    struct sd_pool *next; /* all there are, the dying ones too */
    int device;
    bool is_default;
    bool destroyed;                 /* goes with its last block */
    uint64_t from_process, from_id; /* an imported one: what it is elsewhere */
    unsigned handle_types;
    size_t max_size;
    struct sd_piece *pieces;
    uint64_t reserved, reserved_high, used, used_high, threshold;
    int reuse[4]; /* the three reuse attributes by number */
    uint8_t access[SD_MAX_DEVICES];
    unsigned live;
};

struct sd_pool *sd_pool_new(int device, bool is_default, const CUmemPoolProps *props);
/* Memory that nothing uses goes back to the device until `keep` bytes are reserved. */
void sd_pool_trim(struct sd_pool *pool, uint64_t keep);
void sd_pool_give(struct sd_pool *pool, struct sd_block *block, struct sd_op *after,
                  const struct sd_queue *queue);
/* While the stream captures, memory belongs to the graph: one address for every launch. */
CUresult sd_graph_take(struct sd_queue *queue, size_t bytes, struct sd_block **ret);
/* After a synchronisation: pools shrink to their release thresholds. */
void sd_pools_at_sync(void);
/* The device is out of memory: all unused pool memory goes back. True when any did. */
bool sd_pools_release(int device);

CUresult sd_mem_get_default_pool(CUmemoryPool *pool, CUmemLocation *where,
                                 CUmemAllocationType type);
CUresult sd_mem_get_pool(CUmemoryPool *pool, CUmemLocation *where, CUmemAllocationType type);
CUresult sd_mem_set_pool(CUmemLocation *where, CUmemAllocationType type, CUmemoryPool pool);

/* ---- poolshare.c ---- */

CUresult sd_pool_import_pointer(CUdeviceptr *ptr, CUmemoryPool pool,
                                const CUmemPoolPtrExportData *data);

/* ---- vmm.c ---- */

/* What a CUmemGenericAllocationHandle stands for. Alive while referenced or mapped. */
struct sd_allocation {
    struct sd_object object;
    struct sd_phys *phys;
    CUmemAllocationProp prop;
    unsigned refs;
    unsigned maps;
    bool imported;
};

unsigned sd_reservation_count(void);
unsigned sd_exported_fd_count(void);
unsigned sd_handle_count(void);

/* ---- ipc.c ---- */

void sd_context_drop_ipc(struct sd_context *context);
unsigned sd_ipc_opened_count(void);
/* Random, never 0: which process this is. */
uint64_t sd_process_token(void);
/* The memory behind a descriptor of another process, if that still has it. */
CUresult sd_open_memory(int pid, int their_fd, uint64_t inode, uint64_t size, struct sd_phys **ret);

/* ---- copy.c ---- */

CUresult sd_memcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async);
CUresult sd_memcpy_htod(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream,
                        bool async);
CUresult sd_memcpy_dtoh(void *dst, CUdeviceptr src, size_t bytes, CUstream stream, bool async);
CUresult sd_memset(CUdeviceptr dst, uint32_t value, unsigned width, size_t count, CUstream stream);
CUresult sd_memcpy_3d(const CUDA_MEMCPY3D *copy, CUstream stream, bool async);
CUresult sd_memset_2d(CUdeviceptr dst, size_t pitch, uint32_t value, unsigned width, size_t count,
                      size_t rows, CUstream stream);
/* On a queue that was checked. */
CUresult sd_queue_fill(struct sd_queue *queue, CUdeviceptr dst, size_t pitch, uint32_t value,
                       unsigned width, size_t count, size_t rows, bool other_devices);
/* Memory that the host can read and write, for all that is known: not of the devices' part of the
   address space, or live there. */
bool sd_may_be_host(uint64_t address, size_t bytes);
/* Ordinary memory over the whole range, or memory that the driver knows to be the host's. */
bool sd_known_host(uint64_t address, size_t bytes);
CUresult sd_sync_allowed(struct sd_queue *queue, bool async);

/* ---- array.c ---- */

struct sd_array {
    struct sd_object object;
    struct sd_array *next; /* all there are */
    struct sd_context *context;
    CUDA_ARRAY3D_DESCRIPTOR shape;
    size_t pitch, rows; /* bytes a row; those of all slices, which follow each other */
    struct sd_segment *segment;
    bool level; /* of a mipmapped array, with which it goes */
};

/* Of one element, 0 where there is no such format. */
size_t sd_element_bytes(CUarray_format format, unsigned channels);
void sd_context_drop_arrays(struct sd_context *context);

/* ---- texture.c ---- */

void sd_context_drop_textures(struct sd_context *context);

/* ---- copy2d.c ---- */

CUresult sd_memcpy_2d(const CUDA_MEMCPY2D *copy, CUstream stream, bool async);
/* On a queue that was checked. */
CUresult sd_queue_copy(struct sd_queue *queue, const CUDA_MEMCPY2D *copy, bool async);
/* A slice of the box, as a rectangle. */
CUDA_MEMCPY2D sd_slice_of(const CUDA_MEMCPY3D *copy, size_t z);
CUresult sd_memcpy_2d_v1(const CUDA_MEMCPY2D_v1 *copy, CUstream stream, bool async);
/* A copy between memory that work may touch; copies what it can, false at a fault. */
bool sd_move(const struct sd_context *context, uint64_t dst, bool dst_host, uint64_t src,
             bool src_host, size_t bytes);

/* ---- module.c, kernels.c ---- */

struct sd_kernel {
    const char *name;
    uint8_t arg_bytes[SD_KERNEL_ARGS];                                   /* 0 ends the list */
    bool (*run)(const struct sd_context *context, const uint64_t *args); /* false: it faulted */
};

const struct sd_kernel *sd_kernel_find(const char *name);

CUresult sd_library_load_data(CUlibrary *library, const void *code);
CUresult sd_launch_kernel(CUfunction function, const unsigned grid[3], const unsigned block[3],
                          CUstream stream, void **params, void **extra);
CUresult sd_launch_kernel_ex(const CUlaunchConfig *config, CUfunction function, CUstream stream,
                             void **params, void **extra);
void sd_context_drop_modules(struct sd_context *context);

#endif
