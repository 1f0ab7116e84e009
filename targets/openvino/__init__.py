"""The OpenVINO family: Intel CPUs and GPUs, and the host on x86."""
