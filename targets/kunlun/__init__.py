"""The Baidu Kunlun (Kunlunxin XPU) family."""
