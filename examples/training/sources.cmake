# SPDX-License-Identifier: MIT
# What the training programs share, and their models; tests compile it in double.
set(MHLA_TRAINING_SOURCES
  char_lm/model.cpp char_lm/windows.cpp
  train_vit/classifier.cpp
  training/attention_layer.cpp training/comparison.cpp training/mlp_layer.cpp
  training/softmax_attention.cpp training/token_mixing.cpp training/token_prediction.cpp
  training/trainer.cpp training/transformer.cpp)
list(TRANSFORM MHLA_TRAINING_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/../")
