# While a package is made: libraries that came with LibTorch lose what only debuggers read, and look
# for each other where they lie.
file(GLOB libraries $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/phalanx/libtorch/*)
foreach(library ${libraries})
  execute_process(COMMAND ${strip} --strip-unneeded ${library} COMMAND_ERROR_IS_FATAL ANY)
  unset(rpath)
  unset(runpath)
  file(READ_ELF ${library} RPATH rpath RUNPATH runpath)
  if(rpath OR runpath)
    file(RPATH_SET FILE ${library} NEW_RPATH "\$ORIGIN")
  endif()
endforeach()
