// Stands in for PyTorch's.
#pragma once

#include <ATen/cuda/CUDAContextLight.h>
