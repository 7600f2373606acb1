// The trace file format: what the emulator writes and what the decoder reads.
//
// A trace file holds what one process asked of its devices, in the global order of the calls:
//
//   FileHeader | Record | Record | ... | zero bytes
//
// A record is a RecordHeader followed by `payload_bytes` of payload. The payload is a list of
// zigzag LEB128 varints in the order of the fields below, except for `string` and `thread`, whose
// payload is a varint id followed by the bytes of the text. Trailing fields may be left out; the
// decoder fills them with kMissing. The writer maps the file in windows and stores `kind` last, so
// a reader of a killed process's file sees whole records followed by zeros. A file that was closed in good
// order ends with an `end` record.
//
// docs/trace-format.md describes the fields and the history of versions.
#pragma once

#include <cstdint>

namespace maya::trace {

inline constexpr char kMagic[8] = {'M', 'A', 'Y', 'A', 'T', 'R', 'C', '\0'};
inline constexpr uint32_t kVersion = 2;
inline constexpr int64_t kMissing = INT64_MIN;

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;  // sizeof(FileHeader): records start here
  uint64_t process_id;
  int64_t rank;           // global rank (RANK), -1 when the process is not a rank
  int64_t start_unix_ns;  // wall clock at the first record
};

struct RecordHeader {
  uint16_t payload_bytes;
  uint8_t kind;
  uint8_t flags;
  uint16_t thread;  // index of the `thread` record
  uint16_t reserved;
  uint32_t gap_ns;  // host CPU time of the thread since its previous record ended (saturates)
};
static_assert(sizeof(RecordHeader) == 12);

enum RecordFlags : uint8_t {
  kBlocked = 1,      // the thread slept before this call: it was woken by the record before it
  kFromGraph = 2,    // expanded from a graph launch
  kNotWorkload = 4,  // issued by a watchdog thread
};

// X(number, kind, "field,field,...")
#define MAYA_TRACE_RECORDS(X)                                                                          \
  X(1, string, "id")                                                                                   \
  X(2, thread, "id")                                                                                   \
  X(3, end, "calls")                                                                                   \
  X(4, mark, "name,value")                                                                             \
  X(5, range_push, "name")                                                                             \
  X(6, range_pop, "")                                                                                  \
  X(7, unemulated, "name")                                                                             \
  X(8, code, "name,hash,num_registers,static_shared_bytes")                                            \
  X(10, kernel,                                                                                        \
    "stream,name,grid_x,grid_y,grid_z,block_x,block_y,block_z,shared_bytes,num_elements,"              \
    "scalar0,scalar1,scalar2,scalar3,scalar4,scalar5")                                                 \
  X(11, gemm, "stream,library,m,n,k,batch,trans_a,trans_b,type_a,type_b,type_c,compute_type,epilogue") \
  X(12, conv,                                                                                          \
    "stream,direction,dtype,compute_dtype,batch,channels_in,channels_out,groups,in_d,in_h,in_w,"       \
    "kernel_d,kernel_h,kernel_w,out_d,out_h,out_w,stride_h,stride_w,dilation_h,dilation_w,"            \
    "channels_last,fused_ops")                                                                         \
  X(13, attention,                                                                                     \
    "stream,direction,dtype,batch,heads_q,heads_kv,seq_q,seq_kv,head_dim_qk,head_dim_v,causal,"        \
    "dropout")                                                                                         \
  X(14, library_op, "stream,name,dtype,read_bytes,written_bytes,flops")                                \
  X(15, memcpy, "stream,direction,bytes,host_pinned,is_blocking")                                      \
  X(16, memset, "stream,bytes,is_blocking")                                                            \
  X(17, collective, "stream,comm,op,count,dtype,reduce_op,peer,sequence,group")                        \
  X(18, host_func, "stream")                                                                           \
  X(19, graph_launch, "stream,graph,num_operations")                                                   \
  X(30, stream_create, "stream,flags,priority")                                                        \
  X(31, stream_destroy, "stream")                                                                      \
  X(32, event_create, "event,flags")                                                                   \
  X(33, event_destroy, "event")                                                                        \
  X(34, event_record, "stream,event,version")                                                          \
  X(35, stream_wait_event, "stream,event,version")                                                     \
  X(36, event_sync, "event,version")                                                                   \
  X(37, event_query, "event,version")                                                                  \
  X(38, stream_sync, "stream")                                                                         \
  X(39, stream_query, "stream")                                                                        \
  X(40, device_sync, "")                                                                               \
  X(50, malloc, "address,bytes,memory,stream")                                                         \
  X(51, free, "address,bytes,memory,stream")                                                           \
  X(52, out_of_memory, "bytes,used_bytes,capacity_bytes")                                              \
  X(60, comm_init, "comm,unique_id,num_ranks,rank,parent,color,split_index")                           \
  X(61, comm_destroy, "comm")

enum class Kind : uint8_t {
#define X(number, kind, fields) kind = number,
  MAYA_TRACE_RECORDS(X)
#undef X
};

// Values of coded fields.
enum class MemcpyDirection : int64_t {
  host_to_device,
  device_to_host,
  device_to_device,
  host_to_host,
  peer_to_peer
};
enum class Memory : int64_t { device, pinned_host, managed, stream_ordered, virtual_mapping };
enum class Pass : int64_t { forward, backward_data, backward_filter };  // conv and attention direction
#define MAYA_COLLECTIVE_OPS(X) \
  X(all_reduce)                \
  X(broadcast) X(reduce) X(all_gather) X(reduce_scatter) X(all_to_all) X(gather) X(scatter) X(send) X(recv)
enum class CollectiveOp : int64_t {
#define X(op) op,
  MAYA_COLLECTIVE_OPS(X)
#undef X
};
enum class GemmLibrary : int64_t { cublas, cublaslt };
// fused_ops of a convolution: what the same kernel does besides.
enum FusedOps : int64_t { kFusedBias = 1, kFusedResidual = 2, kFusedActivation = 4, kFusedOther = 8 };
// compute_dtype of a convolution whose fp32 inputs run on tensor cores; cuDNN has no code for it.
inline constexpr int64_t kTensorFloat32 = 1000;
// dtype fields hold the library's own codes: cudaDataType for gemm, cudnnDataType_t for conv,
// attention and library_op, ncclDataType_t for collective.

}  // namespace maya::trace
