// Names that later releases of cuDNN have, with their values there. They stand in namespace maya, where
// they hide the real ones, so that the sources build against older headers as well.
#pragma once

#include <cudnn.h>

namespace maya {

inline constexpr auto CUDNN_DATA_COMPLEX_FP64 = static_cast<cudnnDataType_t>(21);
inline constexpr auto CUDNN_DATA_COMPLEX_FP32 = static_cast<cudnnDataType_t>(20);
inline constexpr auto CUDNN_DATA_UINT32 = static_cast<cudnnDataType_t>(19);
inline constexpr auto CUDNN_DATA_INT4 = static_cast<cudnnDataType_t>(17);
inline constexpr auto CUDNN_DATA_UINT4 = static_cast<cudnnDataType_t>(18);
inline constexpr auto CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR =
    static_cast<cudnnBackendDescriptorType_t>(45);
inline constexpr auto CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR =
    static_cast<cudnnBackendDescriptorType_t>(44);
inline constexpr auto CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR =
    static_cast<cudnnBackendDescriptorType_t>(42);
inline constexpr auto CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR =
    static_cast<cudnnBackendDescriptorType_t>(43);
inline constexpr auto CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR =
    static_cast<cudnnBackendDescriptorType_t>(41);
inline constexpr auto CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC = static_cast<cudnnBackendAttributeName_t>(2853);
inline constexpr auto CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC = static_cast<cudnnBackendAttributeName_t>(2852);
inline constexpr auto CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC = static_cast<cudnnBackendAttributeName_t>(2851);
inline constexpr auto CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC = static_cast<cudnnBackendAttributeName_t>(2802);
inline constexpr auto CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC = static_cast<cudnnBackendAttributeName_t>(2801);
inline constexpr auto CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC = static_cast<cudnnBackendAttributeName_t>(2800);
inline constexpr auto CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH = static_cast<cudnnBackendAttributeName_t>(2867);
inline constexpr auto CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH = static_cast<cudnnBackendAttributeName_t>(2811);
inline constexpr auto CUDNN_ATTR_OPERATION_SDPA_FWD_DROPOUT_PROBABILITY =
    static_cast<cudnnBackendAttributeName_t>(2818);
inline constexpr auto CUDNN_ATTR_OPERATION_SOFTMAX_SUM_EXP_DESC =
    static_cast<cudnnBackendAttributeName_t>(3104);
inline constexpr auto CUDNN_ATTR_OPERATION_SOFTMAX_MAX_DESC = static_cast<cudnnBackendAttributeName_t>(3103);
inline constexpr auto CUDNN_ATTR_OPERATION_SOFTMAX_STATS_DESC =
    static_cast<cudnnBackendAttributeName_t>(3102);
inline constexpr auto CUDNN_ATTR_OPERATION_SOFTMAX_YDESC = static_cast<cudnnBackendAttributeName_t>(3101);
inline constexpr auto CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC =
    static_cast<cudnnBackendAttributeName_t>(3006);
inline constexpr auto CUDNN_ATTR_OPERATION_MOE_GROUPED_MATMUL_OUTPUT_DESC =
    static_cast<cudnnBackendAttributeName_t>(2905);

}  // namespace maya
