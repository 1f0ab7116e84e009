"""The LiteRT (TFLite) family: Raspberry Pi, Android and other 64-bit Arm CPUs, and x86 for checking."""
