# cmake -DOUT=page_files.h -DFOLDER=DIR -DFILES=a;b -P embed.cmake: files as string literals, in a header that page.cc
# alone includes. The delimiter is checked for, so no file can end its own literal.
set(text "#pragma once\n\nnamespace fathom::server {\n\ninline constexpr PageFile kPageFiles[] = {\n")
foreach(file IN LISTS FILES)
  file(READ ${FOLDER}/${file} bytes)
  string(FIND "${bytes}" ")embedded\"" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${file} contains the end of a literal")
  endif()
  string(APPEND text "    {\"${file}\", R\"embedded(${bytes})embedded\"},\n")
endforeach()
string(APPEND text "};\n\n}  // namespace fathom::server\n")
file(WRITE ${OUT} "${text}")
