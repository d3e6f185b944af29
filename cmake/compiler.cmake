# Compiler settings of every target: warnings are errors, exact floating point, reproducible paths, optional sanitizers.
set(FATHOM_CXX_OPTIONS
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual -Wnull-dereference -Werror
  # Contraction would let the compiler choose where a multiply and an add round once; kernels ask for FMA by name.
  -ffp-contract=off
  "-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=")

# GCC 12 reports false null dereferences inside libstdc++ and fmt once optimised; clang's analyser covers the real ones.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND FATHOM_CXX_OPTIONS -Wno-null-dereference)
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${FATHOM_CXX_OPTIONS}>")

if(FATHOM_SANITIZE)
  add_compile_options(-fsanitize=${FATHOM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${FATHOM_SANITIZE})
  if(FATHOM_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Asio has fences, which the thread sanitizer does not see; its queues have locks besides, which it does.
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()

if(FATHOM_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage of the rooms, which steers libFuzzer
endif()

find_program(FATHOM_CCACHE ccache)
if(FATHOM_CCACHE)
  # base_dir and no hash_dir: two clones of the same sources share one cache.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${FATHOM_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
find_program(FATHOM_MOLD mold)
if(FATHOM_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
