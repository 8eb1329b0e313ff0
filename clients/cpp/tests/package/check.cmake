# Install the package, build a program against it, and run that with a model.
#   cmake -D BUILD=... -D PLACE=... -D SOURCE=... -D COMPONENT=... -D MODEL=... -P check.cmake
file(REMOVE_RECURSE ${PLACE})
foreach(command
        "${CMAKE_COMMAND};--install;${BUILD};--prefix;${PLACE}/prefix"
        "${CMAKE_COMMAND};-S;${SOURCE};-B;${PLACE}/build;-DCMAKE_PREFIX_PATH=${PLACE}/prefix;-DCOMPONENT=${COMPONENT}"
        "${CMAKE_COMMAND};--build;${PLACE}/build"
        "${PLACE}/build/consumer;${MODEL}")
  execute_process(COMMAND ${command} RESULT_VARIABLE failed OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(failed)
    message(FATAL_ERROR "${command}\n${out}")
  endif()
endforeach()
