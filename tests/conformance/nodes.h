/*
 * Nodes added to a graph by hand, by every call that there is for it.
 */
#ifndef CONFORMANCE_NODES_H
#define CONFORMANCE_NODES_H

#include "conform.h"

#define WORDS ((size_t)256)
#define BYTES (4 * WORDS)

/* The calls for nodes of one kind, and those for nodes of any kind, by the version they came with.
 * A program built against any cuda.h may use each. */
enum form { FORM_KIND, FORM_12020, FORM_12030, FORM_13040, FORMS };
static const int form_versions[FORMS] = {0, 12020, 12030, 13040};

typedef CUresult add_fn(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *);
typedef CUresult add_edges_fn(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *,
                              size_t, CUgraphNodeParams *);
typedef CUresult set_fn(CUgraphNode, CUgraphNodeParams *);
typedef CUresult exec_set_fn(CUgraphExec, CUgraphNode, CUgraphNodeParams *);

/* Older drivers lack the newer forms. */
static inline bool form_exists(enum form form)
{
    return form == FORM_KIND || driver_lookup("cuGraphAddNode", form_versions[form], 0);
}

static inline CUDA_MEMSET_NODE_PARAMS fill_of(const CUgraphNodeParams *params)
{
    return (CUDA_MEMSET_NODE_PARAMS){.dst = params->memset.dst,
                                     .pitch = params->memset.pitch,
                                     .value = params->memset.value,
                                     .elementSize = params->memset.elementSize,
                                     .width = params->memset.width,
                                     .height = params->memset.height};
}

/* Adds a node behind `after`, or behind nothing where that is NULL. */
static inline CUresult add(enum form form, CUgraphNode *node, CUgraph graph, CUgraphNode after,
                           CUgraphNodeParams *params)
{
    const CUDA_MEMSET_NODE_PARAMS fill = fill_of(params);
    void *function = driver_lookup("cuGraphAddNode", form_versions[form], 0);
    size_t count = after != NULL;

    if (form == FORM_12020)
        return ((add_fn *)function)(node, graph, &after, count, params);
    if (form != FORM_KIND)
        return ((add_edges_fn *)function)(node, graph, &after, NULL, count, params);
    if (params->type == CU_GRAPH_NODE_TYPE_MEMSET)
        return cuGraphAddMemsetNode(node, graph, &after, count, &fill, params->memset.ctx);
    return cuGraphAddMemcpyNode(node, graph, &after, count, &params->memcpy.copyParams,
                                params->memcpy.copyCtx);
}

static inline CUresult change(enum form form, CUgraphNode node, CUgraphNodeParams *params)
{
    const CUDA_MEMSET_NODE_PARAMS fill = fill_of(params);

    if (form != FORM_KIND)
        return ((set_fn *)driver_lookup("cuGraphNodeSetParams", form_versions[form], 0))(node,
                                                                                         params);
    return params->type == CU_GRAPH_NODE_TYPE_MEMSET
               ? cuGraphMemsetNodeSetParams(node, &fill)
               : cuGraphMemcpyNodeSetParams(node, &params->memcpy.copyParams);
}

static inline CUresult change_exec(enum form form, CUgraphExec exec, CUgraphNode node,
                                   CUgraphNodeParams *params)
{
    const CUDA_MEMSET_NODE_PARAMS fill = fill_of(params);

    if (form != FORM_KIND)
        return ((exec_set_fn *)driver_lookup("cuGraphExecNodeSetParams", form_versions[form],
                                             0))(exec, node, params);
    return params->type == CU_GRAPH_NODE_TYPE_MEMSET
               ? cuGraphExecMemsetNodeSetParams(exec, node, &fill, params->memset.ctx)
               : cuGraphExecMemcpyNodeSetParams(exec, node, &params->memcpy.copyParams,
                                                params->memcpy.copyCtx);
}

#endif
