"""The TensorRT family: NVIDIA Jetson boards."""
