// The exported functions of a Global layer: in inference, in training, and its norms alone.
#include "layer.h"

PDECNN_FUNCTION(pdecnn_global_layer, global_training::InferenceCall, global_training::infer)
PDECNN_FUNCTION(pdecnn_global_training_forward, global_training::ForwardCall, global_training::forward)
PDECNN_FUNCTION(pdecnn_global_training_backward, global_training::BackwardCall, global_training::backward)
PDECNN_FUNCTION(pdecnn_depthwise_norm_forward, depthwise_norm::ForwardCall, depthwise_norm::forward)
PDECNN_FUNCTION(pdecnn_depthwise_norm_backward, depthwise_norm::BackwardCall, depthwise_norm::backward)
