# cmake -DOUT=page_files.h -DNAME=kPageFiles -DFOLDER=DIR -DFILES=a;b -P embed.cmake: files as string literals, in a
# header that one source includes, behind server/page.h. The delimiter is checked for, so no file can end its own literal.
set(text "#pragma once\n\n#include \"server/page.h\"\n\nnamespace fathom::server {\n\ninline constexpr PageFile ${NAME}[] = {\n")
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
