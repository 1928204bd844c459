/* aura for C++11: handles that free what they own, and exceptions in place of statuses. There is no logic here: everything else is
 * the C interface of aura.h and aura_file.h, which takes these handles as the pointers that they are.
 *
 *     aura::context ctx = aura::make_context();
 *     aura_config config = AURA_CONFIG_INIT;
 *     config.kv_heads = 8, config.k_dim = 128;
 *     aura::cache cache = aura::make_cache(ctx, config);
 *     aura_seq seq;
 *     aura::check(aura_seq_create(cache, &seq));
 *
 * A handle converts to its pointer, moves, and is not copied. Declare a context before what is made with it: it must live longer. */
#ifndef AURA_HPP
#define AURA_HPP

#include <stdexcept>
#include <string>

#include "aura_file.h"

namespace aura {

/* A call that failed: what() is aura_last_error() of the thread that made it. */
class error : public std::runtime_error {
public:
    explicit error(aura_status status) : std::runtime_error(aura_last_error()), status_(status) {}
    aura_status status() const noexcept { return status_; }

private:
    aura_status status_;
};

inline void check(aura_status status)
{
    if (status != AURA_OK)
        throw error(status);
}

/* Owns what a _create or _load function has made. */
template <typename T, void (*destroy)(T *)> class handle {
public:
    handle() noexcept = default;
    explicit handle(T *owned) noexcept : owned_(owned) {}
    handle(handle &&other) noexcept : owned_(other.release()) {}
    handle &operator=(handle &&other) noexcept
    {
        reset(other.release());
        return *this;
    }
    handle(const handle &) = delete;
    handle &operator=(const handle &) = delete;
    ~handle() { destroy(owned_); }

    operator T *() const noexcept { return owned_; }
    T *get() const noexcept { return owned_; }
    T *release() noexcept
    {
        T *owned = owned_;
        owned_ = nullptr;
        return owned;
    }
    void reset(T *owned = nullptr) noexcept
    {
        T *before = owned_;
        owned_ = owned;
        destroy(before);
    }

private:
    T *owned_ = nullptr;
};

typedef handle<aura_ctx, aura_ctx_destroy> context;
typedef handle<aura_cache, aura_cache_destroy> cache;
typedef handle<aura_model_cache, aura_model_cache_destroy> model_cache;
typedef handle<aura_calibration, aura_calibration_destroy> calibration;
typedef handle<aura_profile, aura_profile_destroy> profile;
typedef handle<aura_listing, aura_listing_destroy> listing;

inline context make_context(const aura_ctx_options *options = nullptr)
{
    aura_ctx *made = nullptr;
    check(aura_ctx_create(options, &made));
    return context(made);
}

inline cache make_cache(aura_ctx *ctx, const aura_config &config)
{
    aura_cache *made = nullptr;
    check(aura_cache_create(ctx, &config, &made));
    return cache(made);
}

inline cache load_cache(aura_ctx *ctx, const std::string &path, const aura_snapshot_options *options = nullptr)
{
    aura_cache *made = nullptr;
    check(aura_cache_load(ctx, path.c_str(), options, &made));
    return cache(made);
}

inline model_cache make_model_cache(aura_ctx *ctx, const aura_model_config &config)
{
    aura_model_cache *made = nullptr;
    check(aura_model_cache_create(ctx, &config, &made));
    return model_cache(made);
}

inline model_cache load_model_cache(aura_ctx *ctx, const std::string &path, const aura_snapshot_options *options = nullptr)
{
    aura_model_cache *made = nullptr;
    check(aura_model_load(ctx, path.c_str(), options, &made));
    return model_cache(made);
}

inline calibration make_calibration(const aura_ctx *ctx, const aura_calibration_config &config)
{
    aura_calibration *made = nullptr;
    check(aura_calibration_create(ctx, &config, &made));
    return calibration(made);
}

inline profile load_profile(aura_ctx *ctx, const std::string &path)
{
    aura_profile *made = nullptr;
    check(aura_profile_load(ctx, path.c_str(), &made));
    return profile(made);
}

inline listing list_file(aura_ctx *ctx, const std::string &path)
{
    aura_listing *made = nullptr;
    check(aura_list_file(ctx, path.c_str(), &made));
    return listing(made);
}

} // namespace aura

#endif
