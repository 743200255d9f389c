# SPDX-License-Identifier: MIT
# What the training programs share, compiled once; tests compile it in double.
set(MHLA_TRANSFORMER_SOURCES
  training/attention_layer.cpp training/mlp_layer.cpp training/softmax_attention.cpp
  training/token_mixing.cpp training/token_prediction.cpp training/transformer.cpp)
set(MHLA_TRAINING_SOURCES # and the programs' own models
  char_lm/model.cpp char_lm/windows.cpp train_vit/classifier.cpp
  training/comparison.cpp training/trainer.cpp)
list(TRANSFORM MHLA_TRANSFORMER_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/../")
list(TRANSFORM MHLA_TRAINING_SOURCES PREPEND "${CMAKE_CURRENT_LIST_DIR}/../")
