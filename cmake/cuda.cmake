# The CUDA backend is a plug-in, libfathom_cuda.so: built where nvcc is found, and never linked by anything.
#   FATHOM_CUDA=AUTO|ON|OFF   AUTO skips it, with a message, where there is no nvcc, and under sanitizers and clang-tidy
#   CMAKE_CUDA_ARCHITECTURES  whose machine code, to build for one GPU only
#   FATHOM_CUDA_ALL=ON        machine code for every generation from sm_80 on, and PTX for newer ones, as releases have (six
#                             minutes of processor time, 23 MB)
set(FATHOM_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE FATHOM_CUDA PROPERTY STRINGS AUTO ON OFF)
option(FATHOM_CUDA_ALL "Code for all GPU generations, not only sm_80 and sm_90a" OFF)

set(FATHOM_HAS_CUDA OFF)
if(FATHOM_CUDA STREQUAL "AUTO" AND (FATHOM_SANITIZE OR FATHOM_FUZZ OR CMAKE_CXX_CLANG_TIDY))
  message(STATUS "CUDA backend: not in this kind of build")
elseif(FATHOM_CUDA)
  find_program(FATHOM_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(FATHOM_NVCC)
    set(CMAKE_CUDA_COMPILER ${FATHOM_NVCC})
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
    if(FATHOM_CUDA_ALL)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90a-real 100-real 120)
    elseif(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real)
    endif()
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc has C++20 since 12.0.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    find_package(CUDAToolkit REQUIRED)
    set(FATHOM_HAS_CUDA ON)
    message(STATUS "CUDA backend: built with ${FATHOM_NVCC} for ${CMAKE_CUDA_ARCHITECTURES}")
  elseif(FATHOM_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA backend: skipped, there is no nvcc")
  else()
    message(FATAL_ERROR "FATHOM_CUDA=${FATHOM_CUDA}, but there is no nvcc")
  endif()
endif()

# Program and plug-in must come from one build; device_plugin.cc compares this.
set(FATHOM_BUILD_STAMP "fathom ${PROJECT_VERSION}, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
