# xgrammar: grammars to token masks. scripts/deps.sh lays its sources into the user's cache folder; here its C++ core becomes a
# static library, without its Python bindings. What is known of it, src/grammar knows alone.
set(FATHOM_XGRAMMAR_VERSION 0.2.9)
if(DEFINED ENV{XDG_CACHE_HOME})
  set(fathom_cache "$ENV{XDG_CACHE_HOME}/fathom")
else()
  set(fathom_cache "$ENV{HOME}/.cache/fathom")
endif()
set(FATHOM_XGRAMMAR "${fathom_cache}/xgrammar-${FATHOM_XGRAMMAR_VERSION}" CACHE PATH "The sources of xgrammar")
if(NOT EXISTS "${FATHOM_XGRAMMAR}/include/xgrammar/xgrammar.h")
  message(FATAL_ERROR "there are no sources of xgrammar in ${FATHOM_XGRAMMAR}: run scripts/deps.sh, or set FATHOM_XGRAMMAR")
endif()

file(GLOB xgrammar_sources CONFIGURE_DEPENDS
     "${FATHOM_XGRAMMAR}/cpp/*.cc" "${FATHOM_XGRAMMAR}/cpp/support/*.cc" "${FATHOM_XGRAMMAR}/cpp/converter_ext/*.cc")
add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources})
target_include_directories(xgrammar SYSTEM PUBLIC "${FATHOM_XGRAMMAR}/include" "${FATHOM_XGRAMMAR}/3rdparty/dlpack/include"
                           PRIVATE "${FATHOM_XGRAMMAR}/3rdparty/picojson")
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                           XGRAMMAR_LOG_CUSTOMIZE=1)
target_compile_options(xgrammar PRIVATE -w)  # its warnings are its authors' business
set_target_properties(xgrammar PROPERTIES CXX_STANDARD 17 POSITION_INDEPENDENT_CODE ON CXX_CLANG_TIDY ""
                      EXPORT_COMPILE_COMMANDS OFF)
