// phalanx-coordinator: plans jobs, tells nodes what to run, keeps what it has decided.
//
// Once it serves it writes {"grpc":"HOST:PORT","http":"HOST:PORT"} to --ready-file. SIGTERM and
// SIGINT end it in good order; a second one ends it at once. Exit codes: 0 ended in good order, 1
// could not serve, 2 usage.
#include "coordinator/program/program.h"

int main(int argc, char** argv) { return phalanx::coordinator::RunCoordinator(argc, argv, {}); }
