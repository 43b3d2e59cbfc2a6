"""Steps of one device as CUDA graphs, and what they need."""
