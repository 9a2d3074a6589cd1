// Reports about what the packaged libraries do among themselves. They are not instrumented: their
// own atomics are invisible, while their calls of memmove, epoll_wait and the like are checked.

extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libabsl_cord.so\n"
         "called_from_lib:libabsl_cord_internal.so\n"
         "called_from_lib:libabsl_graphcycles_internal.so\n"
         "called_from_lib:libabsl_status.so\n"
         "called_from_lib:libabsl_strings.so\n"
         "called_from_lib:libabsl_synchronization.so\n"
         "called_from_lib:libabsl_time.so\n"
         "race:cctz::time_zone::Impl::LoadTimeZone\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         // The stream that answers calls of methods that a server does not have.
         "race:grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>\n"
         // What libgrpc.so says of a call's end, by way of its own atomics.
         "race:grpc::internal::CallOpClientRecvStatus::FinishOp\n"
         "called_from_lib:libssl.so\n"
         "called_from_lib:libcrypto.so\n";
}
