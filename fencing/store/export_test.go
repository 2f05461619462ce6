package store

// TrustedIdle is behind which a connection of a pool is asked whether it is there.
const TrustedIdle = trustedIdle
