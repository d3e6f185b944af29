# A room is one folder of src/ and one static library. Dependencies must already be declared, so that arrows point one way:
# configure stops at the first one that points up.
#
#   fathom_room(NAME SOURCES a.cc ... DEPS base ... [LINKS fmt::fmt ...] [TESTS a_test.cc ...] [TEST_LINKS ...])
#
# The tests become one program, fathom_<name>_test, run case by case by ctest.
function(fathom_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;DEPS;LINKS;TESTS;TEST_LINKS" ${ARGN})
  set(target fathom_${name})
  add_library(${target} STATIC ${ROOM_SOURCES})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  foreach(dep IN LISTS ROOM_DEPS)
    if(NOT TARGET fathom_${dep})
      message(FATAL_ERROR "room ${name} uses ${dep}, which is not declared before it: arrows point down only")
    endif()
    target_link_libraries(${target} PUBLIC fathom_${dep})
  endforeach()
  target_link_libraries(${target} PUBLIC ${ROOM_LINKS})
  if(FATHOM_TESTS AND ROOM_TESTS)
    fathom_test(${target}_test SOURCES ${ROOM_TESTS} LINKS ${target} ${ROOM_TEST_LINKS})
  endif()
endfunction()

if(FATHOM_TESTS)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/source_dir.cc CONTENT
       "#include \"${CMAKE_SOURCE_DIR}/tests/support/source_dir.h\"\n
#include <cstdlib>\n
const char* fathom::test_source_dir() {
  const char* elsewhere = std::getenv(\"FATHOM_SOURCE_DIR\");
  return elsewhere != nullptr ? elsewhere : \"${CMAKE_SOURCE_DIR}\";
}\n")
  add_library(fathom_source_dir STATIC ${CMAKE_BINARY_DIR}/source_dir.cc)
  target_compile_options(fathom_source_dir INTERFACE "SHELL:-include \"${CMAKE_SOURCE_DIR}/tests/support/source_dir.h\"")
endif()

# fathom_test(NAME SOURCES ... LINKS ... [LABEL quick|long]): a GoogleTest program. FATHOM_SOURCE_DIR tells it where
# tests/data and models/ are (tests/support/source_dir.h); the environment variable of that name overrides it, for programs
# that run on another machine than they were built on.
function(fathom_test name)
  cmake_parse_arguments(TEST "" "LABEL" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  target_link_libraries(${name} PRIVATE ${TEST_LINKS} GTest::gtest GTest::gmock GTest::gtest_main fathom_source_dir)
  if(NOT TEST_LABEL)
    set(TEST_LABEL quick)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES LABELS ${TEST_LABEL} TIMEOUT 600)
endfunction()
