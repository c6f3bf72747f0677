# Says hello, asks for something that is not implemented, and says goodbye.
set(requests "${CMAKE_CURRENT_BINARY_DIR}/requests.ndjson")
file(WRITE "${requests}" [[
{"id": 1, "method": "hello", "params": {"protocols": [1]}}
{"id": 2, "method": "inspect", "params": {"path": "nothing"}}
{"id": 3, "method": "shutdown", "params": {}}
]])
execute_process(COMMAND "${DRIVER}" INPUT_FILE "${requests}" OUTPUT_VARIABLE replies RESULT_VARIABLE code)
foreach(expected "\"protocol\":1" "\"unsupported\":{\"feature\":\"inspect\"}" "\"id\":3,\"result\":{}")
  string(FIND "${replies}" "${expected}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "no ${expected} in the replies:\n${replies}")
  endif()
endforeach()
if(NOT code EQUAL 0)
  message(FATAL_ERROR "the driver ended with ${code}")
endif()
