package postgres

// Forget discards what is remembered about a resource that no one here campaigns for:
// since when its lease has not been renewed. The count starts over with the next
// candidacy.
func (p *Provider) Forget(resource string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.mu.seen, resource)
}
