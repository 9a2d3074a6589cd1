#pragma once

// Which sanitizer watches: gcc and clang say it in different words.

#if defined(__has_feature)
#define TRAINYARD_HAS_FEATURE(name) __has_feature(name)
#else
#define TRAINYARD_HAS_FEATURE(name) 0
#endif

namespace trainyard::emulator {

#if defined(__SANITIZE_ADDRESS__) || TRAINYARD_HAS_FEATURE(address_sanitizer)
#define TRAINYARD_WATCHED_FOR_BOUNDS 1
inline constexpr bool kWatchedForBounds = true;
#else
inline constexpr bool kWatchedForBounds = false;
#endif

#if defined(__SANITIZE_THREAD__) || TRAINYARD_HAS_FEATURE(thread_sanitizer)
#define TRAINYARD_WATCHED_FOR_RACES 1
inline constexpr bool kWatchedForRaces = true;
#else
inline constexpr bool kWatchedForRaces = false;
#endif

}  // namespace trainyard::emulator
