/* What most tests of sharing begin with (scene.h). */
#include "scene.h"

char dir[64];
struct gs_share_options options;
struct side side;
struct side_chunk chunk;
struct other other;

void scene_new(void)
{
    side_dir_new(dir, sizeof dir);
    side_options(&options, dir);
}

void scene_side(void)
{
    side_start(&side, &options);
}

void scene_side_anew(void)
{
    side_stop(&side);
    scene_side();
}

void scene_chunk(void)
{
    scene_side();
    chunk = side_chunk_new(&side, 2 * MIB);
}

void scene_block(struct gs_export **ret_export, unsigned char ret_ipc_handle[GS_IPC_HANDLE_SIZE])
{
    scene_chunk();
    *ret_export = scene_export(0, 512, ret_ipc_handle);
}

struct gs_export *scene_export(size_t offset, size_t size, unsigned char *ret_ipc_handle)
{
    struct gs_export *export;

    CHECK(side_export(&side, &chunk, offset, size, &export) == GS_OK);
    gs_export_handle(export, ret_ipc_handle);
    return export;
}

CUdeviceptr scene_open(const unsigned char *ipc_handle)
{
    CUdeviceptr address = 0;

    CHECK(gs_share_open(side.share, ipc_handle, SIDE_CONTEXT, 0, &address) == GS_OK);
    return address;
}

void scene_stop(void)
{
    side_stop(&side);
    if (chunk.size)
        side_chunk_free(&side, &chunk);
    chunk.size = 0;
}

void scene_end(void)
{
    if (other.pid)
        CHECK(other_stop(&other) == 0);
    scene_stop();
    CHECK(memdriver_alive() == 0);
    if (side_broker_pid(dir))
        CHECK(side_broker_end(dir));
    side_dir_remove(dir);
}
