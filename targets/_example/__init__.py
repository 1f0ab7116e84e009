"""The teaching example: a whole family on ONNX Runtime, small enough to read in one sitting."""
